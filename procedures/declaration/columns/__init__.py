"""Which columns a table may have: types, defaults and options, each with an effect or refused."""
