"""Dumps of logits: npz, npy and safetensors, in and out."""
