"""From the tables of the states to those of a program, before calls that need them."""
