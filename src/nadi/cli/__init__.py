"""The command line: for people.

Its modules import at their heads no more than help and completion need, which a person waits for at each press of
the tab key. Client and server take most of a second to import; a command does so where it begins to work with them.
"""
