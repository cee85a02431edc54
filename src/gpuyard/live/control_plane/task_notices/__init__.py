"""Messages about single tasks to web addresses and by mail: who may be told, what is said, and sending it."""
