"""Figures from records. Never trains.

`figure_data` says what is shown, `charts` how it is drawn, from the `parts` that charts share; `files` writes them.
"""
