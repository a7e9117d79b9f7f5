"""Speed-ups, floors, failures and accuracy, as sheets."""
