"""The runtime, which decodes: targets, drafters, tree policies, verifiers, decoders and sessions."""
