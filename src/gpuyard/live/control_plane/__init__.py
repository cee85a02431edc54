"""THE SERVER: REST, gRPC, the engine loop, views, access. Plumbing: it never decides."""
