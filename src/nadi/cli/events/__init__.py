"""Events in the shell: `nadi write`, `read` and `tail`, and `export` and `import` of files."""
