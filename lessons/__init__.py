"""From one message to a serving engine: lessons, exercises, and the checker that judges them.

Start with README.md in this folder. Not part of the installed package: run from a checkout.
"""
