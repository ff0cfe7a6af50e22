"""The Qwen2.5-Omni family: text, images and sound in, text and speech out."""
