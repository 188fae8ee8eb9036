"""The launch room: starts, watches and stops processes; assembles rooms into a server or a library.

Takes argv, the environment and files; nothing below reads them.
Gives exit codes, an Engine, and every process of a server.
"""
