"""The messages of REST and gRPC, and their conversion to and from internal values."""
