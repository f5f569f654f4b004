"""Figures from records. `scene` says what is shown, `charts` how it is drawn, `files` what is written. Never trains."""
