"""ON THE LINE: what is said over REST and gRPC, and how it becomes what we talk about inside."""
