"""The elastic pool: providers that boot nodes and take them back."""
