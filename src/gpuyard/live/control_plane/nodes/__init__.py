"""Everything between the scheduler and its agents: connections, registration, launches, output, the elastic pool."""
