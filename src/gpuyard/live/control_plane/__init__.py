"""The scheduler process: REST, gRPC, the engine loop, views, access. The engine makes all decisions."""
