package numerics

// DigestOf is Digest of another version or machine.
func (i *Ingredients) DigestOf(version int, arch string) string { return i.digest(version, arch) }
