"""Small helpers around the operating system: files replaced as a whole, lock files, growing pauses. No rules of ours."""
