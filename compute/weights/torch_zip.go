package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Sizes and signatures of a zip archive's records. Source: PKWARE's APPNOTE.TXT 6.3, section 4.3.
const (
	zipLocalBytes, zipLocal       = 30, "PK\x03\x04"
	zipEntryBytes, zipEntry       = 46, "PK\x01\x02" // of the central directory
	zipEndBytes, zipEnd           = 22, "PK\x05\x06"
	zipLocatorBytes, zip64Locator = 20, "PK\x06\x07"
	zip64EndBytes, zip64End       = 56, "PK\x06\x06"

	zipComment = 1<<16 - 1 // the longest comment after the end record
	zip64      = 1<<32 - 1 // a field whose value is in the extra field
)

// maxZipEntries bounds what a directory makes us allocate: a file of torch has one entry for each storage.
const maxZipEntries = 1 << 17

// zipDirectory is where the central directory of an archive is.
type zipDirectory struct{ entries, size, offset uint64 }

// zipEntries returns the entries of a zip archive by name, each a slice of the file. They must be stored: torch.save compresses nothing.
// archive/zip is not used because it allocates several times the size of a directory of many short entries.
func zipEntries(file []byte) (map[string][]byte, error) {
	d, err := findZipDirectory(file)
	if err != nil {
		return nil, err
	}
	if d.entries > maxZipEntries {
		return nil, fault("", fmt.Sprintf("%d at most", maxZipEntries), "an archive of %d entries", d.entries)
	}
	directory, ok := slice(file, d.offset, d.size)
	if !ok {
		return nil, fault("", fmt.Sprintf("an end within the file's %d bytes", len(file)), "a directory of %d bytes at byte %d", d.size,
			d.offset)
	}
	entries := map[string][]byte{}
	for range d.entries {
		var name string
		var data []byte
		if name, data, directory, err = readZipEntry(file, directory); err != nil {
			return nil, err
		}
		if _, twice := entries[name]; twice {
			return nil, fault(name, "each entry once", "the entry twice")
		}
		entries[name] = data
	}
	return entries, nil
}

// slice returns n bytes of a file at an offset, if it has them.
func slice(file []byte, at, n uint64) ([]byte, bool) {
	if at > uint64(len(file)) || n > uint64(len(file))-at {
		return nil, false
	}
	return file[at : at+n : at+n], true
}

// findZipDirectory reads the records at the end of an archive.
func findZipDirectory(file []byte) (d zipDirectory, err error) {
	from := max(0, len(file)-zipEndBytes-zipComment)
	at := from + bytes.LastIndex(file[from:], []byte(zipEnd))
	if at < from || len(file)-at < zipEndBytes {
		return d, noZip(file)
	}
	end := file[at:]
	if comment := int(binary.LittleEndian.Uint16(end[20:])); comment != len(end)-zipEndBytes {
		return d, fault("", fmt.Sprintf("%d, the length of the archive's comment", comment),
			"%d bytes after its end record", len(end)-zipEndBytes)
	}
	d.entries = uint64(binary.LittleEndian.Uint16(end[10:]))
	d.size, d.offset = uint64(binary.LittleEndian.Uint32(end[12:])), uint64(binary.LittleEndian.Uint32(end[16:]))
	if at < zipLocatorBytes || !bytes.HasPrefix(file[at-zipLocatorBytes:], []byte(zip64Locator)) {
		return d, nil
	}
	offset := binary.LittleEndian.Uint64(file[at-zipLocatorBytes+8:])
	record, ok := slice(file, offset, zip64EndBytes)
	if !ok || !bytes.HasPrefix(record, []byte(zip64End)) {
		return d, fault("", "zip64's end record", "none at byte %d, where the archive has it", offset)
	}
	d.entries = binary.LittleEndian.Uint64(record[32:])
	d.size, d.offset = binary.LittleEndian.Uint64(record[40:]), binary.LittleEndian.Uint64(record[48:])
	return d, nil
}

// torchMagic begins a file of torch before 1.6: a pickle of protocol 2 with the number 0x1950a86a20f9469cfc6c.
const torchMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

// noZip says what a file is that has no zip archive's end.
func noZip(file []byte) error {
	const expected = "a zip archive, as torch.save writes since 1.6"
	switch {
	case bytes.HasPrefix(file, []byte(torchMagic)):
		return fault("", expected+": save_pretrained of transformers turns the model into safetensors", "the format of torch before 1.6")
	case bytes.HasPrefix(file, []byte(zipLocal)):
		return fault("", "the end record of a zip archive"+cut, "none")
	}
	return fault("", expected, "%.8q", file[:min(8, len(file))])
}

// readZipEntry reads the first entry of a directory, and returns what follows it.
func readZipEntry(file, directory []byte) (name string, data, rest []byte, err error) {
	if len(directory) < zipEntryBytes || !bytes.HasPrefix(directory, []byte(zipEntry)) {
		return "", nil, nil, fault("", "an entry", "%.4q in the archive's directory", directory[:min(4, len(directory))])
	}
	head := directory[:zipEntryBytes]
	lengths := [3]int{} // of name, extra field and comment
	for i := range lengths {
		lengths[i] = int(binary.LittleEndian.Uint16(head[28+2*i:]))
	}
	rest = directory[zipEntryBytes:]
	all := lengths[0] + lengths[1] + lengths[2]
	if len(rest) < all {
		return "", nil, nil, fault("", fmt.Sprintf("%d of an entry", all), "%d bytes in the archive's directory", len(rest))
	}
	name, extra := string(rest[:lengths[0]]), rest[lengths[0]:lengths[0]+lengths[1]]
	rest = rest[all:]
	if flags := binary.LittleEndian.Uint16(head[8:]); flags&1 != 0 {
		return "", nil, nil, fault(name, "no encryption", "an encrypted entry")
	}
	if method := binary.LittleEndian.Uint16(head[10:]); method != 0 {
		return "", nil, nil, fault(name, "0, stored", "compression method %d", method)
	}
	fields := [3]uint64{} // size, stored size and offset, in the order of zip64's extra field
	for i, at := range [3]int{24, 20, 42} {
		fields[i] = uint64(binary.LittleEndian.Uint32(head[at:]))
	}
	if !extendZip64(&fields, extra) {
		return "", nil, nil, fault(name, "zip64's extra field", "none with all its values")
	}
	size, stored, offset := fields[0], fields[1], fields[2]
	if size != stored {
		return "", nil, nil, fault(name, fmt.Sprintf("%d, its size", size), "%d stored bytes", stored)
	}
	data, err = zipData(file, name, offset, size)
	return name, data, rest, err
}

// extendZip64 takes the values of full fields from an extra field.
func extendZip64(fields *[3]uint64, extra []byte) bool {
	var values []byte
	for len(extra) >= 4 {
		n := int(binary.LittleEndian.Uint16(extra[2:]))
		if n > len(extra)-4 {
			break
		}
		if binary.LittleEndian.Uint16(extra) == 1 {
			values = extra[4 : 4+n]
		}
		extra = extra[4+n:]
	}
	for i := range fields {
		if fields[i] != zip64 {
			continue
		}
		if len(values) < 8 {
			return false
		}
		fields[i], values = binary.LittleEndian.Uint64(values), values[8:]
	}
	return true
}

// zipData returns the bytes of an entry whose local header is at an offset.
func zipData(file []byte, name string, offset, size uint64) ([]byte, error) {
	head, ok := slice(file, offset, zipLocalBytes)
	if !ok || !bytes.HasPrefix(head, []byte(zipLocal)) {
		return nil, fault(name, "a local header", "none at byte %d, where the directory has it", offset)
	}
	n, extra := uint64(binary.LittleEndian.Uint16(head[26:])), uint64(binary.LittleEndian.Uint16(head[28:]))
	if own, ok := slice(file, offset+zipLocalBytes, n); !ok || string(own) != name {
		return nil, fault(name, "the directory's", "the name %.80q in the local header", own)
	}
	begin := offset + zipLocalBytes + n + extra
	data, ok := slice(file, begin, size)
	if !ok {
		return nil, fault(name, fmt.Sprintf("an end within the file's %d bytes", len(file)), "%d bytes at byte %d", size, begin)
	}
	return data, nil
}
