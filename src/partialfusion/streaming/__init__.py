"""Models that are never in memory whole: read from their files a tensor at a time, written shard by shard."""
