"""The control plane: scopes, streams, epochs, scaling, transactions. See `controller.Controller`."""
