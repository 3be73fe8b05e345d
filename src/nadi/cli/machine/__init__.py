"""The machine and its server: `nadi doctor` looks for what is wrong, `nadi bench` measures, `nadi top` watches."""
