package app
type neverYield struct{}
func (neverYield) Yielding() (bool, string) { return false, "" }
func (neverYield) Changed() <-chan struct{} { return nil }
