"""CSM: text and earlier turns with their sound in, speech out."""
