"""What will it need: run times predicted from what is known before a task runs."""
