"""Train small models in torch. No other part of edgedec imports torch, except ``quantize.demo_pair``."""
