"""`/v1/realtime`: a conversation by voice over a websocket."""
