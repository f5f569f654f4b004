"""What is shown in a terminal (`tables`, `live`, `live_deployment`), and what trackers are sent (`track`)."""
