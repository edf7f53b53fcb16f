package fault

import "testing"

func TestCause(t *testing.T) {
	for _, c := range []struct {
		text, name, want string
	}{
		{"the ledger has no user-000007", "user-000007", "the ledger has no #"},
		{"the ledger has no user-000008", "", "the ledger has no #"},
		{"alice is broken", "alice", "# is broken"},
		{"invoice 17 of 2026-11-25T10:00:00Z: 404", "", "invoice # of #:#:#: #"},
		{`parse "abc": strconv.ParseInt: invalid syntax`, "", "parse #: strconv.ParseInt: invalid syntax"},
		{"mail ann@example.com bounced", "", "mail # bounced"},
		{"rpc error: code = NotFound desc = no such\n row", "", "rpc error: code = NotFound desc = no such row"},
		{"6ba7b810-9dad-11d1-80b4-00c04fd430c8 exists", "", "# exists"},
		{"", "x", ""},
		{"red \x1b[31m\u202eand\xff back", "", "red [# and# back"},
		{"id 5", "id", "id #"}, // too short to be a name
	} {
		if got := Cause(c.text, c.name); got != c.want {
			t.Errorf("Cause(%q, %q) is %q, want %q", c.text, c.name, got, c.want)
		}
		if again := Cause(Cause(c.text, c.name)); again != c.want {
			t.Errorf("the cause of the cause of %q is %q", c.text, again)
		}
	}
	long := make([]byte, 1000)
	for i := range long {
		long[i] = "äöü "[i%7]
	}
	if got := Cause(string(long)); len(got) > longestCause {
		t.Errorf("%d bytes", len(got))
	}
}

// TestBrief checks that the text for a panic contains neither the stack nor an address.
func TestBrief(t *testing.T) {
	const stack = "\nexample.com/shop.(*ledger).credit(0xc000123, {0x1, 0x2})\n\t/src/shop/ledger.go:12 +0x1d\n" +
		"example.com/shop.init.func1(0xc000)\n\t/src/shop/main.go:7 +0x25"
	for text, want := range map[string]string{
		"no such row":           "no such row",
		"panic: no row":         "panic: no row",
		"panic: no row" + stack: "panic: no row, in shop.(*ledger).credit (ledger.go:12)",
		"2 of 3 failed: panic: two\nlines" + stack: "2 of 3 failed: panic: " +
			"two\nlines, in shop.(*ledger).credit (ledger.go:12)",
		"panic: cut off\nexample.com/shop.f(0xc0…": "panic: cut off",
	} {
		if got := Brief(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := Cause("panic: no row 7" + stack); got != "panic: no row #, in shop.(*ledger).credit (ledger.go:#)" {
		t.Errorf("the cause %q", got)
	}
}
