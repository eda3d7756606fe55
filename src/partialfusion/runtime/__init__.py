"""What one does with a fused model: run it, keep it, hand it on."""
