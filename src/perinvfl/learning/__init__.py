"""What ONE client may compute: risks, penalties, the gradient of an objective, and what its shortcut tells."""
