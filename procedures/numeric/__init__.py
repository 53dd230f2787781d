"""Exact decimals: types, SQL and functions of `Numeric(p, s)`."""
