"""The command line: for people.

Its modules import at the top only what help and completion need, as a person waits for that at each press of the tab
key. Client and server take most of a second to import; a command does so where it starts to use them.
"""
