package devstack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// change is one request that changed the registry.
type change struct {
	Method string `json:"method"`
	URI    string `json:"uri"`
	Body   string `json:"body,omitempty"`
}

// journal is the file of changes, one JSON object a line, in the order in
// which they happened. Replayed from the start, they give the same ids.
type journal struct {
	file *os.File
	sync bool
	size int64 // bytes of whole lines
}

// openJournal reads the changes in the file at path, made when absent, and
// cuts off a last line that a kill left unfinished: it was never answered.
func openJournal(path string, sync bool) (*journal, []change, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, nil, fmt.Errorf("make the folder of the registry: %w", err)
	}
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, nil, fmt.Errorf("read the registry's journal: %w", err)
	}
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	var changes []change
	for i, line := range bytes.Split(bytes.TrimSpace(content), []byte{'\n'}) {
		if len(line) == 0 {
			continue
		}
		var c change
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, nil, fmt.Errorf("read line %d of %s: %w", i+1, path, err)
		}
		changes = append(changes, c)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, nil, fmt.Errorf("open the registry's journal: %w", err)
	}
	j := &journal{file: file, sync: sync, size: int64(len(content))}
	if err := file.Truncate(j.size); err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("mend the registry's journal: %w", err)
	}
	return j, changes, nil
}

// append writes one change at the end; after an error the file is as before.
func (j *journal) append(c change) error {
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a change: %w", err)
	}
	line = append(line, '\n')
	_, err = j.file.WriteAt(line, j.size)
	if err == nil && j.sync {
		err = j.file.Sync()
	}
	if err != nil {
		_ = j.file.Truncate(j.size)
		return fmt.Errorf("write the registry's journal: %w", err)
	}
	j.size += int64(len(line))
	return nil
}

func (j *journal) close() error { return j.file.Close() }
