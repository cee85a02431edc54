"""One scheduling pass: try the tasks that a wake-up reached; place, reserve, preempt, move."""
