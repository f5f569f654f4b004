"""What a terminal and trackers are told."""
