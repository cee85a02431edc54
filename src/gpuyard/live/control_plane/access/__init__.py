"""Authentication and authorization: users and tokens, the loopback rule, Host and Origin, roles."""
