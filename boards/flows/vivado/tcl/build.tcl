# The whole build, without a question:  vivado -mode batch -source build.tcl
# The folder may lie anywhere. What is made goes to work/, what is wanted of it at the end to results/.
# It tries the clocks and strategies of settings.tcl in their order, and stops at the first that meets timing. A run that was
# interrupted goes on with the attempt in which it was, and behind its synthesis, if that had come to its end; before the
# end of the first synthesis it begins anew.

set here [file dirname [file normalize [info script]]]
source [file join $here settings.tcl]
source [file join $here ip package.tcl]
source [file join $here processing_system.tcl]
source [file join $here block_design.tcl]

set step 0
set steps [expr {4 + 3 * [llength $settings(attempts)]}]
proc step {what} {
    global step
    global steps
    incr step
    puts "edgedec: step $step of $steps: $what"
    flush stdout
}

proc check_version {} {
    global settings
    set found [version -short]
    if {[package vcompare [regsub {[^0-9.].*$} $found {}] $settings(minimum_vivado)] < 0} {
        error "edgedec: this is Vivado $found, the project needs $settings(minimum_vivado) or newer"
    }
}

# An IP of Vivado's own catalogue in the newest version that this Vivado has.
proc newest {name} {
    set found [lsort -dictionary [get_ipdefs -filter "VLNV =~ xilinx.com:ip:$name:*"]]
    if {[llength $found] == 0} {
        error "edgedec: this Vivado has no IP xilinx.com:ip:$name; install the device family of the board"
    }
    return [lindex $found end]
}

proc check_run {run} {
    set progress [get_property PROGRESS [get_runs $run]]
    if {$progress ne "100%"} {
        set directory [get_property DIRECTORY [get_runs $run]]
        error "edgedec: $run ended at $progress, see [file join $directory runme.log]"
    }
}

proc write_file {path text} {
    set file [open $path w]
    puts $file $text
    close $file
}

proc read_file {path} {
    if {![file exists $path]} {
        return ""
    }
    set file [open $path r]
    set text [string trim [read $file]]
    close $file
    return $text
}

# The first of the files that match one of these patterns.
proc find_file {what args} {
    foreach pattern $args {
        set found [lsort [glob -nocomplain -types f {*}$pattern]]
        if {[llength $found] > 0} {
            return [lindex $found 0]
        }
    }
    error "edgedec: Vivado left no $what"
}

proc make_project {here work} {
    global settings
    step "packaging the accelerator"
    file delete -force -- $work
    file mkdir $work
    package_accelerator $here $work
    step "making the project"
    create_project -force $settings(project) [file join $work project] -part $settings(part)
    use_board_part
    set_property ip_repo_paths [list [file join $work repository]] [current_project]
    update_ip_catalog -rebuild
    step "making the block design"
    make_block_design
    add_files -fileset constrs_1 -norecurse [list [file join $here constraints board.xdc]]
    set_property USED_IN_SYNTHESIS false [get_files board.xdc]
}

# Board files say how the processing system's memory and pins are set up. The boot program has done that when the fabric is
# loaded, so the build does without them where they are not installed.
proc use_board_part {} {
    global settings
    set settings(preset) 0
    if {$settings(board_part) ne ""} {
        set found [lsort -dictionary [get_board_parts -quiet $settings(board_part)]]
        if {[llength $found] > 0} {
            set_property board_part [lindex $found end] [current_project]
            set settings(preset) 1
        }
    }
}

# Needs a new or a reset run: what it was made from is written down behind its end.
proc synthesise {work mhz strategy} {
    global settings
    file delete -force -- [file join $work synthesised]
    set_clock $mhz
    write_file [file join $work clock_mhz] [fabric_clock_mhz]
    set run [get_runs synth_1]
    reset_run synth_1
    set_property strategy $strategy $run
    launch_runs synth_1 -jobs $settings(jobs)
    wait_on_run synth_1
    check_run synth_1
    write_file [file join $work synthesised] [list $mhz $strategy]
    write_file [file join $work made] $settings(key)
}

proc implement {strategy} {
    global settings
    set run [get_runs impl_1]
    reset_run impl_1
    set_property strategy $strategy $run
    set_property STEPS.PHYS_OPT_DESIGN.IS_ENABLED true $run
    set_property STEPS.POST_ROUTE_PHYS_OPT_DESIGN.IS_ENABLED true $run
    launch_runs impl_1 -to_step write_bitstream -jobs $settings(jobs)
    wait_on_run impl_1
    check_run impl_1
}

# WNS, WHS and WPWS in ns, by the table "Design Timing Summary".
proc read_slacks {path} {
    set names {}
    foreach line [split [read_file $path] "\n"] {
        if {[regexp {^\s*WNS\(ns\)\s+TNS\(ns\)} $line]} {
            set names [split [regsub -all {\s\s+} [string trim $line] "\t"] "\t"]
        } elseif {[llength $names] > 0 && ![regexp {^[\s-]*$} $line]} {
            foreach name $names value [regexp -all -inline {\S+} $line] {
                set found($name) $value
            }
            break
        }
    }
    foreach name {WNS(ns) WHS(ns) WPWS(ns)} {
        if {![info exists found($name)] || ![string is double -strict $found($name)]} {
            error "edgedec: [file tail $path] has no number $name: no path was timed"
        }
        lappend slacks $found($name)
    }
    return $slacks
}

# Facts of the worst path of the opened run: of setup, or else of hold. Nothing where only a pulse is too short.
proc failing_path {} {
    foreach {kind delay} {setup max hold min} {
        set path [lindex [get_timing_paths -delay_type $delay -max_paths 1 -nworst 1] 0]
        if {$path ne "" && [get_property SLACK $path] < 0} {
            set facts [list "path_kind $kind"]
            foreach {fact property} {path_slack_ns SLACK path_levels LOGIC_LEVELS path_delay_ns DATAPATH_DELAY \
                    path_from STARTPOINT_PIN path_to ENDPOINT_PIN} {
                lappend facts "$fact [get_property $property $path]"
            }
            return $facts
        }
    }
    return {}
}

# All that is wanted of an attempt. Its bitstream has its good name only if timing is met, and is nowhere else if not.
# Returns the worst slack.
proc collect {work part attempt} {
    global settings
    file delete -force -- $part
    file mkdir $part
    open_run impl_1
    report_timing_summary -file [file join $part timing_summary.rpt]
    report_utilization -file [file join $part utilization.rpt]
    report_utilization -hierarchical -file [file join $part utilization_hierarchical.rpt]
    report_power -file [file join $part power.rpt]
    set slacks [read_slacks [file join $part timing_summary.rpt]]
    set worst [lindex [lsort -real $slacks] 0]
    set clock [read_file [file join $work clock_mhz]]
    set facts [list "key $settings(key)" "vivado [version -short]" "clock_mhz $clock" \
        "board_part [get_property board_part [current_project]]"]
    set implementation [get_property DIRECTORY [get_runs impl_1]]
    set bitstream [find_file bitstream [list -directory $implementation *.bit]]
    if {$worst >= 0} {
        write_hw_platform -fixed -include_bit -force -file [file join $part accelerator.xsa]
        file copy -force -- $bitstream [file join $part accelerator.bit]
    } else {
        lappend facts {*}[failing_path]
        file rename -force -- $bitstream [file join $part accelerator.timing-not-met.bit]
    }
    close_design
    set tail [file join sources_1 bd $settings(design) hw_handoff $settings(design).hwh]
    set project [file join $work project]
    set handoff [find_file .hwh [list -directory $project $settings(project).gen/$tail] \
        [list -directory $project $settings(project).srcs/$tail]]
    file copy -force -- $handoff [file join $part accelerator.hwh]
    write_file [file join $part facts.txt] [join $facts "\n"]
    write_file [file join $part attempt.txt] [join [list {*}$attempt $clock {*}$slacks] "\t"]
    return $worst
}

# One line of work/attempts.txt for each attempt that came to its end; the nearest one's results are in work/nearest.
proc make_attempt {work number attempt} {
    global settings
    global step
    lassign $attempt mhz synthesis implementation
    set step [expr {3 + 3 * $number}]
    set which [expr {$number == 0 ? "" : " (attempt [expr {$number + 1}] of [llength $settings(attempts)])"}]
    step "synthesis$which"
    if {[read_file [file join $work synthesised]] ne [list $mhz $synthesis]} {
        synthesise $work $mhz $synthesis
    }
    step "placement and routing$which"
    implement $implementation
    step "reports and results$which"
    set part [file join $work part]
    set nearest [file join $work nearest]
    set worst [collect $work $part $attempt]
    set line [read_file [file join $part attempt.txt]]
    set before [read_file [file join $nearest attempt.txt]]
    if {$before eq "" || $worst > [lindex [lsort -real [lrange [split $before "\t"] 4 6]] 0]} {
        file delete -force -- $nearest
        file rename -- $part $nearest
    }
    file delete -force -- $part
    write_file [file join $work attempts.txt] [string trim "[read_file [file join $work attempts.txt]]\n$line"]
    return [expr {$worst >= 0}]
}

# All results appear at once under their name.
proc publish {here work met} {
    set nearest [file join $work nearest]
    set results [file join $here results]
    if {![file isdirectory $nearest]} {
        error "edgedec: every attempt was made before; remove work/ and results/ to make them again"
    }
    file copy -force -- [file join $work attempts.txt] [file join $nearest attempts.txt]
    file delete -force -- $results
    file rename -- $nearest $results
    if {!$met} {
        puts "edgedec: timing is not met, see [file join $results facts.txt]"
    }
}

proc main {here} {
    global settings
    global step
    check_version
    set work [file join $here work]
    set project [file join $work project $settings(project).xpr]
    if {[read_file [file join $work made]] eq $settings(key) && [file exists $project]} {
        set step 2
        step "opening the project that was made before"
        open_project $project
    } else {
        make_project $here $work
    }
    set tried [split [read_file [file join $work attempts.txt]] "\n"]
    set met [expr {[llength $tried] > 0 && [lindex [lsort -real [lrange [split [lindex $tried end] "\t"] 4 6]] 0] >= 0}]
    for {set number [llength $tried]} {!$met && $number < [llength $settings(attempts)]} {incr number} {
        set met [make_attempt $work $number [lindex $settings(attempts) $number]]
    }
    publish $here $work $met
    set step [expr {$::steps - 1}]
    step "done"
}

main $here
