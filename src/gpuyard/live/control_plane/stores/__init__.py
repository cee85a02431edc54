"""What the scheduler keeps on disk beside the journal, and how it recovers from it."""
