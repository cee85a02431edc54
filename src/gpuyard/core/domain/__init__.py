"""What we talk about: values, commands, facts, refusals and errors. No behaviour beyond their own meaning."""
