"""Training of small models in torch: the only part of edgedec that imports it."""
