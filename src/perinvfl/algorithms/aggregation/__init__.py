"""How a server puts the clients' updates together."""
