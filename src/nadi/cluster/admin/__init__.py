"""Reports, draining, figures and garbage: nothing here decides who has a container, and no server needs it to serve."""
