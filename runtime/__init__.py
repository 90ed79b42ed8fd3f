"""Everything that decodes: targets, drafters, trees, verifiers, decoders, sessions."""
