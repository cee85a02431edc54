"""Who may come in, and what they may do: users and tokens, the local rule, Host and Origin, roles."""
