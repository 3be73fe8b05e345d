"""One query takes over from another at one stream cut: what is durable of that, and what it does to their plans."""
