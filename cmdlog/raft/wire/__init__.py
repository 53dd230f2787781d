"""Messages of consensus as bytes, in frames that are authenticated. See WIRE.md."""
