"""One history as stream, lake and index, written, split, merged, truncated and killed meanwhile: whoever is asked says
the same. `readings` is what is written, `writer_main` writes it, `parts` are the processes, `engines` are asked, and in
`judge` it all happens and is compared.
"""
