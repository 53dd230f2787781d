"""A throw-away embedded database for the tests of procedures."""
