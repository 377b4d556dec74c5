package providertest

import (
	"bytes"
	"net/mail"
	"strings"

	"github.com/google/uuid"
)

func (c *smtpConn) take(raw []byte) {
	m, err := mail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		return
	}
	send, err := uuid.Parse(m.Header.Get("Carril-Send-Id"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[send] = append(c.taken[send], strings.Trim(m.Header.Get("Message-Id"), "<>"))
}

// drip begins a reply and does not go on.
func (c *smtpConn) drip() bool {
	_, _ = c.conn.Write([]byte("2"))
	if c.behaviour.Reached != nil {
		c.behaviour.Reached()
	}
	c.wait()
	return false
}

// flood replies for as long as the client stands it, then with a success.
func (c *smtpConn) flood() bool {
	line := []byte("250-" + strings.Repeat("x", 60<<10) + "\r\n")
	for range 1024 {
		if _, err := c.conn.Write(line); err != nil {
			return false
		}
	}
	return c.text.PrintfLine("250 2.0.0 Ok") == nil
}
